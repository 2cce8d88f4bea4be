# Finds Oniguruma, whose Debian package brings no CMake files. Defines Oniguruma::onig.
find_path(Oniguruma_INCLUDE_DIR oniguruma.h)
find_library(Oniguruma_LIBRARY onig)
mark_as_advanced(Oniguruma_INCLUDE_DIR Oniguruma_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Oniguruma REQUIRED_VARS Oniguruma_LIBRARY Oniguruma_INCLUDE_DIR
                                  REASON_FAILURE_MESSAGE "install Debian's libonig-dev")

if(Oniguruma_FOUND AND NOT TARGET Oniguruma::onig)
  add_library(Oniguruma::onig UNKNOWN IMPORTED)
  set_target_properties(Oniguruma::onig PROPERTIES IMPORTED_LOCATION ${Oniguruma_LIBRARY}
                                                   INTERFACE_INCLUDE_DIRECTORIES ${Oniguruma_INCLUDE_DIR})
endif()

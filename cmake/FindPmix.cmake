# Finds the headers of libpmix, whose Debian package brings no CMake files and puts them beside the library; the library itself is
# loaded when it is needed (transport/bootstrap/pmix_store.h). Defines Pmix::headers.
find_path(Pmix_INCLUDE_DIR pmix.h PATHS /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE} PATH_SUFFIXES pmix2/include)
mark_as_advanced(Pmix_INCLUDE_DIR)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Pmix REQUIRED_VARS Pmix_INCLUDE_DIR REASON_FAILURE_MESSAGE "install Debian's libpmix-dev")

if(Pmix_FOUND AND NOT TARGET Pmix::headers)
  add_library(Pmix::headers INTERFACE IMPORTED)
  set_target_properties(Pmix::headers PROPERTIES INTERFACE_INCLUDE_DIRECTORIES ${Pmix_INCLUDE_DIR})
endif()

# Finds libibverbs, whose Debian package brings no CMake files. Defines Ibverbs::ibverbs.
find_path(Ibverbs_INCLUDE_DIR infiniband/verbs.h)
find_library(Ibverbs_LIBRARY ibverbs)
mark_as_advanced(Ibverbs_INCLUDE_DIR Ibverbs_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Ibverbs REQUIRED_VARS Ibverbs_LIBRARY Ibverbs_INCLUDE_DIR
                                  REASON_FAILURE_MESSAGE "install Debian's libibverbs-dev")

if(Ibverbs_FOUND AND NOT TARGET Ibverbs::ibverbs)
  add_library(Ibverbs::ibverbs UNKNOWN IMPORTED)
  set_target_properties(Ibverbs::ibverbs PROPERTIES IMPORTED_LOCATION ${Ibverbs_LIBRARY}
                                                    INTERFACE_INCLUDE_DIRECTORIES ${Ibverbs_INCLUDE_DIR})
endif()

# Finds the header of libibverbs, whose Debian package brings no CMake files; the library itself is loaded when RDMA is looked for
# (transport/verbs/library.h). Defines Ibverbs::headers.
find_path(Ibverbs_INCLUDE_DIR infiniband/verbs.h)
mark_as_advanced(Ibverbs_INCLUDE_DIR)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Ibverbs REQUIRED_VARS Ibverbs_INCLUDE_DIR REASON_FAILURE_MESSAGE "install Debian's libibverbs-dev")

if(Ibverbs_FOUND AND NOT TARGET Ibverbs::headers)
  add_library(Ibverbs::headers INTERFACE IMPORTED)
  set_target_properties(Ibverbs::headers PROPERTIES INTERFACE_INCLUDE_DIRECTORIES ${Ibverbs_INCLUDE_DIR})
endif()

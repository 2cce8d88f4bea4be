# Finds xxHash, whose Debian package brings no CMake files. Defines xxHash::xxhash, and XXH_DISPATCHES for those who link it if it is a
# library that picks its vectors when it runs (Debian's shared one is, its static one isn't).
find_path(xxHash_INCLUDE_DIR xxhash.h)
find_library(xxHash_LIBRARY xxhash)
mark_as_advanced(xxHash_INCLUDE_DIR xxHash_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(xxHash REQUIRED_VARS xxHash_LIBRARY xxHash_INCLUDE_DIR
                                  REASON_FAILURE_MESSAGE "install Debian's libxxhash-dev")

if(xxHash_FOUND AND NOT TARGET xxHash::xxhash)
  add_library(xxHash::xxhash UNKNOWN IMPORTED)
  set_target_properties(xxHash::xxhash PROPERTIES IMPORTED_LOCATION ${xxHash_LIBRARY}
                                                  INTERFACE_INCLUDE_DIRECTORIES ${xxHash_INCLUDE_DIR})
  include(CheckLibraryExists)
  check_library_exists(${xxHash_LIBRARY} XXH3_64bits_dispatch "" xxHash_DISPATCHES)
  if(xxHash_DISPATCHES)
    set_target_properties(xxHash::xxhash PROPERTIES INTERFACE_COMPILE_DEFINITIONS XXH_DISPATCHES)
  endif()
endif()

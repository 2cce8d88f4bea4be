# Installs the package into a fresh prefix. What lies in its include folder must be the headers of SOURCE_DIR (include/ of the
# repository), byte by byte, and each must compile as the only header of a translation unit, with only that folder to search.
#   cmake -DBUILD_DIR=… -DSOURCE_DIR=… -DCXX_COMPILER=… -P public_headers.cmake

set(work ${BUILD_DIR}/public_headers)
set(prefix ${work}/prefix)
file(REMOVE_RECURSE ${work})
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${prefix} OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)

file(GLOB_RECURSE installed RELATIVE ${prefix}/include ${prefix}/include/*)
file(GLOB_RECURSE curated RELATIVE ${SOURCE_DIR} ${SOURCE_DIR}/*.h)
if(NOT curated MATCHES "tsprun/context.h")
  message(FATAL_ERROR "${SOURCE_DIR} has no tsprun/context.h")
endif()
if(NOT installed STREQUAL curated)
  message(FATAL_ERROR "installed to be included are\n  ${installed}\nbut should be\n  ${curated}")
endif()

foreach(header ${curated})
  file(READ ${SOURCE_DIR}/${header} ours)
  file(READ ${prefix}/include/${header} theirs)
  if(NOT ours STREQUAL theirs)
    message(FATAL_ERROR "${header} isn't installed as it is in the repository")
  endif()
  file(WRITE ${work}/alone.cpp "#include <${header}>\n#include <${header}>\n")
  execute_process(COMMAND ${CXX_COMPILER} -std=c++20 -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror -fsyntax-only
                          -I${prefix}/include ${work}/alone.cpp
                  RESULT_VARIABLE code ERROR_VARIABLE errors)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "${header} doesn't compile alone:\n${errors}")
  endif()
endforeach()

file(REMOVE_RECURSE ${work})

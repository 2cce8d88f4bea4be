# What only one of the two packages has; CPack runs this for each, when its files lie in CPACK_TEMPORARY_DIRECTORY.
cmake_policy(VERSION 3.25)
set(prefix ${CPACK_TEMPORARY_DIRECTORY}${CPACK_PACKAGING_INSTALL_PREFIX})
set(documents ${prefix}/share/doc/tsprun)

if(CPACK_GENERATOR STREQUAL "DEB")
  file(COPY ${CMAKE_CURRENT_LIST_DIR}/copyright DESTINATION ${documents})
  string(TIMESTAMP day "%a, %d %b %Y %H:%M:%S +0000" UTC)
  file(WRITE ${documents}/changelog "tsprun (${CPACK_PACKAGE_VERSION}) unstable; urgency=medium

  * CHANGELOG.md in this folder tells what changed.

 -- ${CPACK_PACKAGE_CONTACT}  ${day}
")
  execute_process(COMMAND gzip -9n ${documents}/changelog COMMAND_ERROR_IS_FATAL ANY)
  return()
endif()

# The shared libraries that the program needs, all but the C library's. Licences, as Debian's packages have them: theirs, and those of
# headers that are compiled into the program.
set(bundled ${prefix}/lib/tsprun)
set(packages libcli11-dev libibverbs-dev nlohmann-json3-dev)
file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${prefix}/bin/tsprun RESOLVED_DEPENDENCIES_VAR libraries
     PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|pthread)\\.so")
foreach(library ${libraries})
  file(COPY ${library} DESTINATION ${bundled} FOLLOW_SYMLINK_CHAIN)
  cmake_path(GET library FILENAME name)
  execute_process(COMMAND dpkg-query --search "*-linux-gnu/${name}" OUTPUT_VARIABLE owner COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX REPLACE ":.*" "" package ${owner})
  list(APPEND packages ${package})
endforeach()
file(COPY ${CMAKE_CURRENT_LIST_DIR}/../../LICENSE DESTINATION ${documents})
file(MAKE_DIRECTORY ${bundled}/licences)
foreach(package ${packages})
  file(COPY_FILE /usr/share/doc/${package}/copyright ${bundled}/licences/${package})
  file(READ ${bundled}/licences/${package} text)
  string(REGEX MATCHALL "/usr/share/common-licenses/[A-Za-z0-9.-]*[A-Za-z0-9]" named "${text}")
  foreach(licence ${named})
    file(COPY ${licence} DESTINATION ${bundled}/licences FOLLOW_SYMLINK_CHAIN)
  endforeach()
endforeach()

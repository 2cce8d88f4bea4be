# Puts the copyright file of each bundled library's Debian package beside the libraries. BUNDLED_ARCHITECTURE: "x86_64-linux-gnu".
set(bundled $ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/lib/tsprun)
file(GLOB libraries RELATIVE ${bundled} ${bundled}/*.so*)
foreach(library ${libraries})
  execute_process(COMMAND dpkg-query --search */${BUNDLED_ARCHITECTURE}/${library} OUTPUT_VARIABLE owners COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCH "^[^:]+" package ${owners})
  file(INSTALL /usr/share/doc/${package}/copyright DESTINATION ${bundled}/licences RENAME ${package} FOLLOW_SYMLINK_CHAIN)
endforeach()

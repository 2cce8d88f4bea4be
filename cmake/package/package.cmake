# What `cmake --install` brings besides the program and the library: man page, completions, tsprun.pc, documents, examples. And, as
# components of their own, what tools/package.sh adds to its two packages (settings.cmake, generator.cmake):
#   debian   copyright and changelog, as Debian wants them
#   bundled  the shared libraries that the program needs, and all licences: the tarball's program runs where no package is installed

install(CODE "set(TSPRUN [[$<TARGET_FILE:tsprun>]])
set(MANUAL [[${PROJECT_BINARY_DIR}/manual]])
set(MANUAL_PY [[${PROJECT_SOURCE_DIR}/tools/manual.py]])")
install(SCRIPT cmake/package/manual.cmake)
install(FILES ${PROJECT_BINARY_DIR}/manual/tsprun.1.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 OPTIONAL)
install(FILES ${PROJECT_BINARY_DIR}/manual/tsprun.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME tsprun OPTIONAL)
install(FILES ${PROJECT_BINARY_DIR}/manual/_tsprun DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions OPTIONAL)

set(tsprun_pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH tsprun_prefix_of_pc /${tsprun_pc_dir} /)
string(REGEX REPLACE "/$" "" tsprun_prefix_of_pc ${tsprun_prefix_of_pc})
configure_file(cmake/package/tsprun.pc.in ${PROJECT_BINARY_DIR}/tsprun.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tsprun.pc DESTINATION ${tsprun_pc_dir})

install(FILES README.md CHANGELOG.md CONTRIBUTING.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs examples DESTINATION ${CMAKE_INSTALL_DOCDIR} PATTERN __pycache__ EXCLUDE)

include(cmake/package/settings.cmake)

configure_file(cmake/package/copyright.in ${PROJECT_BINARY_DIR}/debian/copyright @ONLY)
string(TIMESTAMP tsprun_day "%a, %d %b %Y %H:%M:%S +0000" UTC)
configure_file(cmake/package/changelog.in ${PROJECT_BINARY_DIR}/debian/changelog @ONLY)
install(CODE "execute_process(COMMAND gzip -9nkf [[${PROJECT_BINARY_DIR}/debian/changelog]] COMMAND_ERROR_IS_FATAL ANY)"
        COMPONENT debian EXCLUDE_FROM_ALL)
install(FILES ${PROJECT_BINARY_DIR}/debian/copyright ${PROJECT_BINARY_DIR}/debian/changelog.gz DESTINATION ${CMAKE_INSTALL_DOCDIR}
        COMPONENT debian EXCLUDE_FROM_ALL)

# The program looks for bundled libraries before the system's. They aren't looked for by LD_LIBRARY_PATH, which ranks would inherit, and
# DT_RPATH, unlike DT_RUNPATH, also holds for libraries that these libraries need.
set_target_properties(tsprun PROPERTIES INSTALL_RPATH "$ORIGIN/../lib/tsprun" BUILD_WITH_INSTALL_RPATH ON)
target_link_options(tsprun PRIVATE -Wl,--disable-new-dtags)
install(RUNTIME_DEPENDENCY_SET tsprun_needs PRE_EXCLUDE_REGEXES "^ld-linux" "^lib(c|m|dl|rt|pthread)\\.so"
        LIBRARY DESTINATION lib/tsprun COMPONENT bundled EXCLUDE_FROM_ALL)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT bundled EXCLUDE_FROM_ALL)
install(CODE "set(BUNDLED_ARCHITECTURE ${CMAKE_LIBRARY_ARCHITECTURE})" COMPONENT bundled EXCLUDE_FROM_ALL)
install(SCRIPT cmake/package/licences.cmake COMPONENT bundled EXCLUDE_FROM_ALL)

# What `cmake --install` brings besides the program and the library, and how CPack makes the two packages of tools/package.sh of it:
#   tsprun_VERSION_amd64.deb            for Debian 12: needs Debian's libraries
#   tsprun-VERSION-linux-x86_64.tar.gz  for any x86-64 Linux with glibc 2.36 or later: has the libraries that its program needs
# additions.cmake adds what only one of them has.

find_program(TSP_PYTHON python3)
if(TSP_PYTHON)
  set(manual ${PROJECT_BINARY_DIR}/manual)
  install(CODE "execute_process(COMMAND [[${TSP_PYTHON}]] [[${PROJECT_SOURCE_DIR}/tools/manual.py]] [[$<TARGET_FILE:tsprun>]] [[${manual}]]
                                COMMAND_ERROR_IS_FATAL ANY)")
  install(FILES ${manual}/tsprun.1.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  install(FILES ${manual}/tsprun.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME tsprun)
  install(FILES ${manual}/_tsprun DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions)
else()
  message(STATUS "cmake --install brings no man page and no completions: tools/manual.py needs python3")
endif()

set(tsprun_pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH tsprun_prefix_of_pc /${tsprun_pc_dir} /)
configure_file(cmake/package/tsprun.pc.in ${PROJECT_BINARY_DIR}/tsprun.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tsprun.pc DESTINATION ${tsprun_pc_dir})

install(FILES README.md CHANGELOG.md CONTRIBUTING.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs examples DESTINATION ${CMAKE_INSTALL_DOCDIR} PATTERN __pycache__ EXCLUDE)

# Where the tarball has libraries. LD_LIBRARY_PATH would be inherited by ranks; DT_RPATH, unlike DT_RUNPATH, also holds for what these
# libraries need.
set_target_properties(tsprun PROPERTIES INSTALL_RPATH "$ORIGIN/../lib/tsprun" BUILD_WITH_INSTALL_RPATH ON)
target_link_options(tsprun PRIVATE -Wl,--disable-new-dtags)

set(CPACK_GENERATOR DEB TGZ)
# Without the component of the PyTorch backend, which is built for one Python.
set(CPACK_INSTALL_CMAKE_PROJECTS "${PROJECT_BINARY_DIR};tsprun;Unspecified;/")
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/cmake/package/additions.cmake)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGE_NAME tsprun)
set(CPACK_PACKAGE_FILE_NAME tsprun-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_PACKAGE_CONTACT "tsprun maintainers <tsprun@example.org>")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION "Every rank is a process that stands for one GPU, with its own memory, budget
and links, so no GPU is needed. Ranks talk by collectives over shared memory,
TCP or RDMA, and run TSP, TP, SP and ZeRO-3 layers, forward and backward.

The package has the program tsprun, the library with which programs of one's
own join a job, its headers, documentation and examples.")
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# What is loaded where there may be RDMA; what a program that links the library links, too.
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS
    "libibverbs1, ibverbs-providers, libfmt-dev, libspdlog-dev, libhwy-dev, libxxhash-dev, libssl-dev")
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libopenblas0-pthread, libpmix2, g++, cmake, pkg-config")
include(CPack)

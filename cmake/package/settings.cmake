# The two packages of tools/package.sh:
#   tsprun_VERSION_amd64.deb            for Debian 12: needs Debian's libraries
#   tsprun-VERSION-linux-x86_64.tar.gz  for any x86-64 Linux with glibc 2.36 or later: has the libraries that its program needs
# Which components each has says cmake/package/generator.cmake.

set(CPACK_PACKAGE_NAME tsprun)
set(CPACK_PACKAGE_VENDOR "tsprun's authors")
# As Debian's own tools: DEBFULLNAME and DEBEMAIL name who makes a package.
set(CPACK_PACKAGE_CONTACT "tsprun's authors <tsprun@example.org>")
if(DEFINED ENV{DEBFULLNAME} AND DEFINED ENV{DEBEMAIL})
  set(CPACK_PACKAGE_CONTACT "$ENV{DEBFULLNAME} <$ENV{DEBEMAIL}>")
endif()
set(CPACK_PROJECT_CONFIG_FILE ${PROJECT_SOURCE_DIR}/cmake/package/generator.cmake)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_STRIP_FILES ON)
set(CPACK_GENERATOR DEB TGZ)
set(CPACK_PACKAGE_FILE_NAME tsprun-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR})

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION "Every rank is a process that stands for one GPU, with its own memory, budget
and links, so no GPU is needed. Ranks talk by collectives over shared memory,
TCP or RDMA, and run TSP, TP, SP and ZeRO-3 layers, forward and backward.

The package has the program tsprun, the library with which programs of one's
own join a job, its headers, documentation and examples.")
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# What is loaded where there may be RDMA; what a program that links the library links too.
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS
    "libibverbs1, ibverbs-providers, libfmt-dev, libspdlog-dev, libhwy-dev, libxxhash-dev, libssl-dev")
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libpmix2, g++, cmake, pkg-config")
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)

include(CPack)

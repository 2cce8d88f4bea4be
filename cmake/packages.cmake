# The Debian packages that the rooms link, as imported targets (whose headers CMake treats as system headers).
# tools/packages.txt names the packages; cmake/tsprunConfig.cmake.in finds the same ones for an installed library.

find_package(Threads REQUIRED)
find_package(Boost 1.74 REQUIRED)
find_package(fmt 9 REQUIRED)
find_package(spdlog 1.10 REQUIRED)
find_package(hwy 1.0 REQUIRED)
find_package(xxHash REQUIRED)
# TLS 1.3 between machines; HMAC-SHA-256 of connections within one.
find_package(OpenSSL 3.0 REQUIRED COMPONENTS SSL Crypto)
# Headers only: libibverbs is loaded where there may be RDMA, libpmix where ranks that no tsprun started are on several nodes.
find_package(Ibverbs REQUIRED)
find_package(Pmix REQUIRED)
find_package(CLI11 2.1 REQUIRED)
# The launcher's alone: traces whose names end in .gz; the cores to which ranks are pinned.
find_package(ZLIB REQUIRED)
find_package(hwloc REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
# layers/text alone: the expressions and the normal forms of tokenizers.
find_package(Oniguruma REQUIRED)
find_package(utf8proc REQUIRED)

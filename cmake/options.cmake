# How everything of ours is compiled: the language, the warnings (which are errors), the sanitizers.

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, Debug or RelWithDebInfo" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# The vector level is chosen when a rank starts, so a build runs on any x86-64: no -march here. What has another level than
# -O3 is in precompiled.cmake.
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG" CACHE STRING "" FORCE)

# g++ spends a sixth of its time on collecting garbage. Where there are 2 GiB for each core it needn't.
cmake_host_system_information(RESULT memory_mib QUERY TOTAL_PHYSICAL_MEMORY)
cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
math(EXPR enough_mib "2048 * ${cores}")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND memory_mib GREATER_EQUAL enough_mib)
  add_compile_options(--param=ggc-min-expand=1000 --param=ggc-min-heapsize=1048576)
endif()

find_program(TSP_CCACHE ccache)
if(TSP_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${TSP_CCACHE})
endif()

# Linked PRIVATE by every target of ours; a user's program doesn't inherit it.
add_library(tsprun_options INTERFACE)
target_compile_features(tsprun_options INTERFACE cxx_std_20)
target_compile_options(tsprun_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Werror)

# Sanitizers go to every target, or the runtime would miss what the others do. TSP_SANITIZE_ADDRESS or _THREAD tells the code.
if(NOT TSP_SANITIZE STREQUAL "none")
  string(TOUPPER ${TSP_SANITIZE} sanitizer)
  add_compile_definitions(TSP_SANITIZE_${sanitizer})
endif()
if(TSP_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    # Checks in other people's templates cost a quarter of the time that ours take to compile.
    add_compile_options(-fsanitize-ignorelist=${CMAKE_CURRENT_LIST_DIR}/asan_ignore.txt)
    # For rooms that fuzz targets run: tells libFuzzer which branches were taken (what -fsanitize=fuzzer-no-link stands for, which no
    # precompiled header fits). Up to clang 16 coroutines can't be compiled so and with the check of called functions' types
    # (llvm-project issue 49689).
    set(TSP_FUZZED -fsanitize-coverage=inline-8bit-counters,indirect-calls,trace-cmp,pc-table -fno-sanitize=function)
  endif()
elseif(TSP_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
elseif(NOT TSP_SANITIZE STREQUAL "none")
  message(FATAL_ERROR "TSP_SANITIZE=${TSP_SANITIZE}: must be none, address or thread")
endif()

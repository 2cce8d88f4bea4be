# How everything of ours is compiled: the language, the warnings (which are errors), the sanitizers.

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, Debug or RelWithDebInfo" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# The vector level is chosen when a rank starts, so a build runs on any x86-64: no -march here.
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG" CACHE STRING "" FORCE)

find_program(TSP_CCACHE ccache)
if(TSP_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${TSP_CCACHE})
endif()

# Linked PRIVATE by every target of ours; a user's program doesn't inherit it.
add_library(tsprun_options INTERFACE)
target_compile_features(tsprun_options INTERFACE cxx_std_20)
target_compile_options(tsprun_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Werror)

# Sanitizers go to every target, or the runtime would miss what the others do. TSP_SANITIZE_ADDRESS, _THREAD or _FUZZER tells the code.
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
  endif()
elseif(TSP_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
elseif(TSP_SANITIZE STREQUAL "fuzzer")
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "TSP_SANITIZE=fuzzer: libFuzzer comes with clang++; configure with -DCMAKE_CXX_COMPILER=clang++")
  endif()
  # Up to clang 16 coroutines can't be compiled with the sanitizer's check of called functions' types (llvm-project issue 49689).
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize=function -fno-sanitize-recover=all -fno-omit-frame-pointer
                      -fsanitize-ignorelist=${CMAKE_CURRENT_LIST_DIR}/fuzz_ignore.txt)
  add_link_options(-fsanitize=fuzzer-no-link,address,undefined)
elseif(NOT TSP_SANITIZE STREQUAL "none")
  message(FATAL_ERROR "TSP_SANITIZE=${TSP_SANITIZE}: must be none, address, thread or fuzzer")
endif()

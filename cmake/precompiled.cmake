# How the rooms are optimised, and the headers that their sources include most, parsed once.
#
#   moving   transport and core, what a message passes through, and layers/text, which loops over characters: with -O3
#   telling  layers and launcher: what waits for kernels and messages, or writes texts, with -O1, which takes two thirds of the time to
#            compile; 8 bytes between two ranks would take a tenth longer with it
#   testing  tests, most of which do little themselves, with -O0: two thirds of the time of -O1 by g++, a third by clang++ with sanitizers
#
# AddressSanitizer's build has launcher and tests with -O0, for the same reason, and the others, which compute, with -O1;
# ThreadSanitizer's has all with -O1.
# A compiler takes a precompiled header only for the flags and macros with which it was made. A source still includes what it uses: the
# presets debug and tidy compile without these headers.

set(level_moving)
set(level_telling $<$<CONFIG:Release>:-O1>)
set(level_testing $<$<CONFIG:Release>:-O0>)
set(kind_of_layers telling)
if(TSP_SANITIZE STREQUAL "address")
  set(level_telling -O0)
  set(level_testing -O0)
  set(kind_of_layers moving)
endif()

set(kinds moving telling)
if(TSP_BUILD_TESTS)
  list(APPEND kinds testing)
endif()
foreach(kind ${kinds})
  add_library(tsprun_${kind} INTERFACE)
  add_library(tsprun_${kind}_headers STATIC ${CMAKE_CURRENT_LIST_DIR}/precompiled/empty.cpp)
  target_link_libraries(tsprun_${kind}_headers PRIVATE tsprun_options tsprun_${kind})
  target_compile_options(tsprun_${kind}_headers PRIVATE ${level_${kind}})
  target_precompile_headers(tsprun_${kind}_headers PRIVATE ${CMAKE_CURRENT_LIST_DIR}/precompiled/${kind}.h)
endforeach()
target_link_libraries(tsprun_moving INTERFACE fmt::fmt spdlog::spdlog Boost::headers)
target_link_libraries(tsprun_telling INTERFACE tsprun_moving nlohmann_json::nlohmann_json)
if(TSP_BUILD_TESTS)
  target_link_libraries(tsprun_testing INTERFACE tsprun_telling GTest::gtest)
  target_compile_options(tsprun_testing INTERFACE -fPIC)  # programs and libraries alike, where CMake has -fPIE for programs
endif()

# compile_as(KIND TARGET): flags, macros and precompiled header of that kind.
function(compile_as kind target)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:tsprun_${kind}>)
  target_compile_options(${target} PRIVATE ${level_${kind}})
  target_precompile_headers(${target} REUSE_FROM tsprun_${kind}_headers)
endfunction()

# Installs the package into a fresh prefix, builds the C++ examples against it and nothing else, runs them under the installed
# tsprun and alone, and compares what they print.
#   cmake -DBUILD_DIR=… -DSOURCE_DIR=… -DCXX_COMPILER=… -P installed_package.cmake

set(work ${BUILD_DIR}/installed_package)
set(prefix ${work}/prefix)
file(REMOVE_RECURSE ${work})

# Runs a command; a code other than 0 ends the test with the command's output.
function(run result)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE errors)
  if(NOT code EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\nended with ${code}\n${output}\n${errors}")
  endif()
  set(${result} "${output}" PARENT_SCOPE)
endfunction()

# The lines of `actual`, sorted, must be `expected`: ranks print in any order.
function(expect_lines what actual expected)
  string(STRIP "${actual}" actual)
  string(REPLACE "\n" ";" lines "${actual}")
  list(SORT lines)
  list(JOIN lines "\n" sorted)
  if(NOT sorted STREQUAL expected)
    message(FATAL_ERROR "${what} printed\n${sorted}\nbut should print\n${expected}")
  endif()
endfunction()

run(ignored ${CMAKE_COMMAND} --install ${BUILD_DIR} --prefix ${prefix})
# A user's own header may have the name of one of the package, and come first: the package must not take it for its own.
file(WRITE ${work}/own/types.h "#error \"a header of the package includes the user's types.h\"\n")

# Builds an example, runs it on four ranks and alone, and compares what the ranks print.
function(check example four_ranks one_rank)
  set(build ${work}/${example})
  run(ignored ${CMAKE_COMMAND} -S ${SOURCE_DIR}/${example} -B ${build} -G Ninja -DCMAKE_CXX_COMPILER=${CXX_COMPILER}
      -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_CXX_FLAGS=-I${work}/own)
  run(ignored ${CMAKE_COMMAND} --build ${build})
  run(four ${prefix}/bin/tsprun -n 4 --no-prefix run -- ${build}/${example})
  expect_lines("tsprun -n 4 run -- ${example}" "${four}" "${four_ranks}")
  run(alone ${build}/${example})
  expect_lines("${example} alone" "${alone}" "${one_rank}")
endfunction()

check(all_reduce
"rank 0 of 4: sum 10, gathered 1 2 3 4
rank 1 of 4: sum 10, gathered 1 2 3 4
rank 2 of 4: sum 10, gathered 1 2 3 4
rank 3 of 4: sum 10, gathered 1 2 3 4"
"rank 0 of 1: sum 1, gathered 1")
check(posted_and_traced
"rank 0: 3 from the previous, 2 alike, traced send_recv all_gather step, refused in broadcast
rank 1: 0 from the previous, 2 alike, traced send_recv all_gather step, refused in broadcast
rank 2: 1 from the previous, 2 alike, traced send_recv all_gather step, refused in broadcast
rank 3: 2 from the previous, 2 alike, traced send_recv all_gather step, refused in broadcast"
"rank 0: 0 from the previous, 1 alike, traced send_recv all_gather step, refused in broadcast")

file(REMOVE_RECURSE ${work})

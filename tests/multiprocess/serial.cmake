# Read by ctest once it knows the tests: those that judge by speed have the machine to themselves.
foreach(test IN LISTS multiprocess_tests_TESTS transport_tests_TESTS)
  if(test MATCHES "SlowLink|Pacing")
    set_tests_properties("${test}" PROPERTIES RUN_SERIAL ON)
  endif()
endforeach()

# cmake --install: bin/tsprun, the libraries, the headers under include/tsp, and the CMake package tsp.
#
# Headers include each other from the project's root ("core/context.h"); installed ones say "tsp/core/context.h", so that no header of
# a program's own is taken for one of ours.

include(CMakePackageConfigHelpers)

set(tsp_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tsp)

set_target_properties(tsp_transport PROPERTIES EXPORT_NAME transport OUTPUT_NAME tsp_transport)
set_target_properties(tsp_core PROPERTIES EXPORT_NAME core OUTPUT_NAME tsp_core)
target_include_directories(tsp INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_compile_features(tsp INTERFACE cxx_std_20)

install(TARGETS tsp tsp_core tsp_transport EXPORT tspTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET tsprun)
  install(TARGETS tsprun EXPORT tspTargets RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(DIRECTORY transport core DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tsp FILES_MATCHING PATTERN "*.h")
install(CODE "set(headers \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR}/tsp\")")
install(CODE [[
  file(GLOB_RECURSE installed "${headers}/*.h")
  foreach(header ${installed})
    file(READ "${header}" text)
    string(REGEX REPLACE "#include \"(core|transport)/" "#include \"tsp/\\1/" text "${text}")
    file(WRITE "${header}" "${text}")
  endforeach()
]])
install(FILES cmake/tsp.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tsp)

install(EXPORT tspTargets NAMESPACE tsp:: DESTINATION ${tsp_package_dir})
configure_package_config_file(cmake/tspConfig.cmake.in ${PROJECT_BINARY_DIR}/tspConfig.cmake
                              INSTALL_DESTINATION ${tsp_package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tspConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tspConfig.cmake ${PROJECT_BINARY_DIR}/tspConfigVersion.cmake
              cmake/FindIbverbs.cmake cmake/FindxxHash.cmake
        DESTINATION ${tsp_package_dir})

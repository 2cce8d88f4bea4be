# cmake --install: bin/tsprun, the libraries, the headers of include/, and the CMake package tsprun.

include(CMakePackageConfigHelpers)

set(tsprun_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tsprun)

set_target_properties(tsprun_transport PROPERTIES EXPORT_NAME transport OUTPUT_NAME tsprun_transport)
set_target_properties(tsprun_core PROPERTIES EXPORT_NAME core OUTPUT_NAME tsprun_core)
set_target_properties(tsprun_public PROPERTIES EXPORT_NAME tsprun)
target_include_directories(tsprun_public INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_compile_features(tsprun_public INTERFACE cxx_std_20)

install(TARGETS tsprun_public tsprun_core tsprun_transport EXPORT tsprunTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET tsprun)
  set_target_properties(tsprun PROPERTIES EXPORT_NAME launcher)
  install(TARGETS tsprun EXPORT tsprunTargets RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(DIRECTORY include/tsprun DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")

install(EXPORT tsprunTargets NAMESPACE tsprun:: DESTINATION ${tsprun_package_dir})
configure_package_config_file(cmake/tsprunConfig.cmake.in ${PROJECT_BINARY_DIR}/tsprunConfig.cmake
                              INSTALL_DESTINATION ${tsprun_package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tsprunConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tsprunConfig.cmake ${PROJECT_BINARY_DIR}/tsprunConfigVersion.cmake
              cmake/FindxxHash.cmake
        DESTINATION ${tsprun_package_dir})

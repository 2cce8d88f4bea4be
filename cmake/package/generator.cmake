# What is different between the packages; CPack reads this for each. The PyTorch backend (component torch) is in neither: it is built for
# one Python.
if(CPACK_GENERATOR STREQUAL "DEB")
  set(components Unspecified debian)
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
else()
  set(components Unspecified bundled)
endif()
list(GET CPACK_INSTALL_CMAKE_PROJECTS 0 build)
set(CPACK_INSTALL_CMAKE_PROJECTS)
foreach(component ${components})
  list(APPEND CPACK_INSTALL_CMAKE_PROJECTS "${build};tsprun;${component};/")
endforeach()

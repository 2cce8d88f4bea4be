# Makes the man page and the shells' completions when tsprun is installed, of the program that is installed.
#   TSPRUN, MANUAL (folder to make them in), MANUAL_PY (tools/manual.py) are set by the caller.
find_program(PYTHON3 python3)
if(PYTHON3)
  execute_process(COMMAND ${PYTHON3} ${MANUAL_PY} ${TSPRUN} ${MANUAL} COMMAND_ERROR_IS_FATAL ANY)
else()
  message(STATUS "no man page and no completions: tools/manual.py needs python3")
endif()

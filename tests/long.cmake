# Read by ctest once it knows the tests: those that repeat, with more shapes, ranks or calls, code that other tests run, too, or that run
# built-in commands as processes, whose parts the tests of layers and launcher run. tools/test.sh --full, which has to fit into an hour,
# leaves out their label, long, under the sanitizers. `tools/test.sh asan` and `tsan` run them.
set(long
    # One of each kind stays.
    "^core\\.All/Growth.*/(all_gather|all_to_all|broadcast|gather|recv|reduce|reduce_scatter|scatter|send)$"
    "^core\\.Algorithms/WithoutViews.*/(direct|one_shot|ring|rooted)$"
    "^core\\.All/CollectiveValues.*_[679]_ranks$"
    "^core\\.CollectiveBits.*(Bf16|F16|F64)$"
    "^core\\.Ranks/Received.*/[468]$"
    "^core\\.Gemm\\.EqualsTripleLoopsForAFewRows$"
    "^core\\.At/Flash(Documents|Levels)\\..*/(avx2|avx512)$"
    # Counts of bytes and memory, by the layouts that the tests against the reference run.
    "^layers\\.(Budgets|Decoder\\.(HoldsAtItsPeak|Receives)|Forecasts|LayoutsMemory|LayoutsTraining|Peaks|Program)"
    "^layers\\.[A-Za-z0-9]*(Audit|Traffic)\\."
    "^layers\\.(MicroBatches\\.(Receive|Hold)|Passes\\.Hold)"
    "^layers\\.SequenceAttention\\.ReceivedBytes"
    "^launcher\\.(Paper|Plan\\.(AMachineChanges|CountsMore|JudgesABudget|SearchP))"
    # Built-in commands as processes.
    "^multiprocess\\.(AlikeNodes|CalibrateCommand\\.WritesAMachine|CompareCommand|Eval|Generate|Gpt2|Layouts|Memory|ModelRefusal)"
    "^multiprocess\\.(NoSharedMemory\\.Collectives|NotFiniteCommands|PlanCommand|Played|Plot|SaveFolder|SigUsr1|Under)"
    "^multiprocess\\.(SimulateCommand\\.(Moves|Traces)|StandardOutput\\.(That|Who)|TrainingFiles|TrainOverTransports|Trace\\.)"
    "^multiprocess\\.Train\\.(GoesOn|HasTheSame|Receives)"
    "^multiprocess\\.(KillAndResume|ModelWithATokenizer\\.KeepsTheTokens|KillStorm\\.On(Programs|TheParents)|Watchdog\\.LeavesAJobAlone)")
foreach(label unit multiprocess)
  set(tests ${multiprocess_tests_TESTS})
  if(label STREQUAL "unit")
    set(tests ${core_tests_TESTS} ${layers_tests_TESTS} ${launcher_tests_TESTS})
  endif()
  foreach(pattern IN LISTS long)
    set(of_pattern ${tests})
    list(FILTER of_pattern INCLUDE REGEX "${pattern}")
    if(of_pattern)
      set_tests_properties(${of_pattern} PROPERTIES LABELS "${label};long")
    endif()
  endforeach()
endforeach()

# Read by ctest once it knows the tests: those that repeat with more shapes, ranks or calls what others run, too. Under a sanitizer each
# takes ten seconds and more without seeing anything new, so the sanitizers' parts of tools/test.sh leave out the label long.
set(long
    # One of each kind stays.
    "^core\\.All/Growth.*/(all_gather|all_to_all|broadcast|gather|recv|reduce|reduce_scatter|scatter|send)$"
    "^core\\.Algorithms/WithoutViews.*/(direct|one_shot|ring|rooted)$"
    "^core\\.All/CollectiveValues.*_[679]_ranks$"
    "^core\\.CollectiveBits.*(Bf16|F16|F64)$"
    "^core\\.Ranks/Received.*/[46]$"
    "^core\\.Gemm\\.EqualsTripleLoopsForAFewRows$"
    # Counts of bytes and memory, by the layouts that the tests against the reference run.
    "^layers\\.(Budgets|Decoder\\.(HoldsAtItsPeak|Receives)|Forecasts|LayoutsMemory|LayoutsTraining|Peaks|Program)"
    "^layers\\.[A-Za-z0-9]*(Audit|Traffic)\\."
    "^layers\\.SequenceAttention\\.ReceivedBytes"
    "^launcher\\.Paper"
    # Runs of tsprun under many layouts, transports or options.
    "^multiprocess\\.(AlikeNodes\\.Compute|CalibrateCommand\\.WritesAMachine|CompareCommand\\.TheLongest|Layouts|Memory|ModelRefusal)"
    "^multiprocess\\.(NoSharedMemory\\.Collectives|PlanCommand\\.Agrees|Played|Plot|SigUsr1|StandardOutput\\.(That|Who))"
    "^multiprocess\\.(Generate\\.(Audits|Greedy)|Gpt2\\.Drops|SimulateCommand\\.(Moves|Traces))"
    # Built-in commands as processes, whose parts the tests of layers and launcher run.
    "^multiprocess\\.(AlikeNodes|CompareCommand|Eval|Generate|Gpt2|NotFiniteCommands|PlanCommand|SaveFolder|TrainingFiles|Trace)"
    "^multiprocess\\.(KillAndResume|KillStorm\\.On(Programs|TheParents))"
    "^multiprocess\\.Train\\.(GoesOn|HasTheSame|Receives)"
    "^multiprocess\\.(Trace\\.(Arrows|Counters|IsGzipped)|TrainOverTransports|Watchdog\\.LeavesAJobAlone)")
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

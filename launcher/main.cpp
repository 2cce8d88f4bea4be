// tsprun.
#include "launcher/cli.h"

int main(int argc, char** argv) { return tsp::launcher::tsprun(argc, argv); }

"""Makes a wheel of a built tsprun_torch: called by tools/wheel.sh, in a folder that has the package, this file and TSPRUN_VERSION set. The
wheel fits the Python and the minor version of PyTorch that the extension was built for, which its metadata say."""

import os
import sys

import torch
from setuptools import Distribution, setup


class WithExtension(Distribution):
    """Has an extension module, which CMake has built."""

    def has_ext_modules(self):
        return True


python = f"{sys.version_info.major}.{sys.version_info.minor}"
pytorch = ".".join(torch.__version__.split(".")[:2])
setup(name="tsprun-torch", version=f"{os.environ['TSPRUN_VERSION']}+torch{pytorch}",
      description='The torch.distributed backend "tsprun": PyTorch programs on tsprun\'s collectives',
      long_description=open("README.md").read(), long_description_content_type="text/markdown", license="Apache-2.0",
      python_requires=f"=={python}.*", install_requires=[f"torch=={pytorch}.*"],
      packages=["tsprun_torch"], py_modules=["tsprun_torch_entry"],
      package_data={"tsprun_torch": ["_tsprun.so", "_tsprun.pyi", "py.typed"]}, zip_safe=False, distclass=WithExtension,
      entry_points={"torch.backends": ["tsprun = tsprun_torch_entry:register"]})

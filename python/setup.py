"""Builds the wheel: what `make install` puts below a prefix goes below that of the environment (bin/holdfast,
lib/holdfast/libholdfast.so, man pages), where the binary finds its library. Called by pip through setuptools."""

import os
import subprocess

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel

HERE = os.path.dirname(os.path.abspath(__file__))


class Wheel(bdist_wheel):
    """With the files of the installation, for any Python of this kind of machine."""

    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]

    def run(self):
        top, stage = os.path.dirname(HERE), os.path.join("build", "prefix")
        subprocess.run(["make", "-C", top, "install", "PREFIX=" + os.path.join(HERE, stage)], check=True)
        self.distribution.data_files = [
            (os.path.relpath(folder, stage), [os.path.join(folder, name) for name in names])
            for folder, _, names in os.walk(stage)
            if names
        ]
        super().run()


setup(cmdclass={"bdist_wheel": Wheel})

"""Installation into a ROS 2 workspace by ament_python."""

from setuptools import setup

NAME = "arr_coc_stream_ros"

setup(
    name=NAME,
    version="0.1.0",
    packages=[NAME],
    data_files=[
        ("share/ament_index/resource_index/packages", [f"resource/{NAME}"]),
        (f"share/{NAME}", ["package.xml"]),
    ],
    install_requires=["setuptools"],
    entry_points={"console_scripts": ["node = arr_coc_stream_ros.node:main"]},
)

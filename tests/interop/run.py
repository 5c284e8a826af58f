#!/usr/bin/env python3
"""Puts published RocketMQ clients and RingMQ together; see README.md beside this file."""

import sys

from driver.main import main

sys.exit(main(sys.argv[1:]))

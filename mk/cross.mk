# The machine that is built for: with ARCH=aarch64 another one, with a cross compiler and that machine's Python
# under an emulator (make aarch64-parts gets them). Included by the Makefile before all else.

HOST_ARCH := $(shell uname -m)
ARCH ?= $(HOST_ARCH)
AARCH64_PARTS := $(CURDIR)/build/aarch64
AARCH64_CXX ?= $(or $(shell command -v aarch64-linux-gnu-g++),$(AARCH64_PARTS)/bin/aarch64-linux-gnu-g++)
# Programs that this file starts see it, too; pip builds through this file.
export ARCH
ifneq ($(ARCH),$(HOST_ARCH))
ifneq ($(ARCH),aarch64)
$(error ARCH=$(ARCH) is none that $(HOST_ARCH) builds for: leave it out, or say ARCH=aarch64)
endif
CROSS := build/$(ARCH)
ifeq ($(PYTHON),)
PYTHON := $(AARCH64_PARTS)/bin/python
ifeq ($(wildcard $(PYTHON)),)
$(error ARCH=$(ARCH) needs a Python and a TensorFlow of that machine: run make aarch64-parts first, which fetches them into $(CROSS))
endif
endif
ifeq ($(origin CXX),default)
CXX := $(AARCH64_CXX)
endif
ifeq ($(origin BUILD_DIR),file)
BUILD_DIR := $(CROSS)
endif
ifeq ($(origin LIB_DIR),file)
LIB_DIR := $(CROSS)/tf_bn_ops/lib
endif
GPU :=
endif

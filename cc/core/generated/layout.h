// clang-format off
/* A hash of the struct of a call, of the values in it and of what its arrays hold: part of the
 * names by which one library calls another, so that two of different layouts never meet.
 * Written by tools/generate_ops from tf_bn_ops/spec: edit that, then make format. */

#pragma once

#define TFBN_LAYOUT 6a48d7d5a9e5

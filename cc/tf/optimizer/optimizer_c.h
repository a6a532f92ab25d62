/* The C ABI of libtf_bn_ops_optimizer.so: what Python calls. The op library
   must have been loaded before. */

#pragma once

#include <stddef.h>

#define TFBN_OPTIMIZER_EXPORT __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* Fuses in a serialized GraphDef and the functions of its library.
   preserved: the names of nodes that must stay, one per line.
   result: the new GraphDef, serialized; NULL if there is an error.
   report: a line for each place where the pattern was found, with tabs between
   function, node, "forward" or "backward", why it was refused (empty: it was
   fused), and the nodes that it was fused with; or the error, NULL if there is
   no memory for it. Both are freed with tfbn_free. Returns 0, or 1 if there is
   an error. */
TFBN_OPTIMIZER_EXPORT int tfbn_fuse_graph(const void* graph, size_t graph_size,
                                          const char* preserved, void** result,
                                          size_t* result_size, char** report);
TFBN_OPTIMIZER_EXPORT void tfbn_free(void* buffer);

/* Runs the fusion on every graph that TensorFlow optimizes in this process from
   now on, or stops that. Returns 0; 1 if another plug-in optimizer holds the
   only place for CPUs; 2 if there is no memory. */
TFBN_OPTIMIZER_EXPORT int tfbn_enable_graph_fusion(int enable);

#ifdef __cplusplus
}
#endif

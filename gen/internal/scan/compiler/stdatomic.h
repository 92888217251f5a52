// SPDX-License-Identifier: Apache-2.0

/* What a compiler brings, as far as declarations need it. */
#pragma once
typedef enum {
	memory_order_relaxed, memory_order_consume, memory_order_acquire,
	memory_order_release, memory_order_acq_rel, memory_order_seq_cst
} memory_order;
#define atomic_load_explicit(object, order) (*(object))
#define atomic_store_explicit(object, value, order) (*(object) = (value))
#define atomic_thread_fence(order) ((void)0)

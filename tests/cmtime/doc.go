// SPDX-License-Identifier: Apache-2.0

// Package cmtime runs our cmtime against rdma-core's, and measures both.
package cmtime

// SPDX-License-Identifier: Apache-2.0

// Package diagnose finds out why RDMA does not work on this machine, and what
// to do about it. Each check looks into one thing and is in a file of its own;
// those that make no sense after an earlier failure are left out.
package diagnose

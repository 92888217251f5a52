// SPDX-License-Identifier: Apache-2.0

// Package diagnose finds out why RDMA does not work on this machine, and what
// to do about it. Each check examines one part of the system and is in a file
// of its own. A check is skipped if a check that it needs has failed.
package diagnose

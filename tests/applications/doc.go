// SPDX-License-Identifier: Apache-2.0

// Package applications runs programs of others on the device in user space and
// over TCP.
package applications

// SPDX-License-Identifier: Apache-2.0

// Package hotplug receives the kernel's events about RDMA devices that appear
// and disappear.
package hotplug

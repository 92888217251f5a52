// SPDX-License-Identifier: Apache-2.0

// Package hotplug hears from the kernel of RDMA devices that come and go.
package hotplug

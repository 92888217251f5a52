// SPDX-License-Identifier: Apache-2.0

// Package rdmadoctor runs rdmadoctor on machines that lack something, and does what
// it says; it also compares rdmadevices with rdma-core's ibv_devinfo, and has
// rdmawatch see what happens to devices.
package rdmadoctor

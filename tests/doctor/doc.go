// SPDX-License-Identifier: Apache-2.0

// Package doctor runs verbena doctor on machines that lack something, and does
// what it says; it also compares verbena devices with rdma-core's ibv_devinfo,
// and has verbena watch see what happens to devices; and it has verbena ping go
// there and back.
package doctor

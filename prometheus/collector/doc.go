// SPDX-License-Identifier: Apache-2.0

// Package collector provides metrics for Prometheus: the counters of RDMA
// devices, and the numbers of objects that programs have on them.
//
// A program with a page of metrics registers a [Collector], and its page then
// also shows the machine's RDMA devices:
//
//	prometheus.MustRegister(collector.New(collector.Config{}))
//
// [NewTransfer] does the same for the peers of an engine of package transfer.
//
// The program verbena-exporter, in this module, has a page for machines without
// such a program.
//
// Counters are called rdma_port_NAME_total, with the labels device and port.
// NAME is the kernel's name, in lower case, without "port_", and with "_bytes"
// if the counter counts bytes and its name does not say so; package stat of
// github.com/verbena-go/verbena/ibverbs has the names. Counters of a driver
// (hw_counters) begin with rdma_port_hw_, or with rdma_device_hw_ if they are
// of the whole device. Messages of the connection manager are in
// rdma_port_cm_tx_msgs_total and similar metrics, with the label message. A
// driver's counter that package stat does not know has no type and no "_total",
// because it may not only grow.
//
// The devices in user space of package softroce have the same metrics, as far
// as they count, with the process in the name of the device: soft0/4711.
//
// Prometheus has floating-point numbers: values above 2^53 are rounded.
package collector

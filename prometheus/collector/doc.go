// SPDX-License-Identifier: Apache-2.0

// Package collector gives Prometheus what RDMA devices have counted, and how
// many objects programs have on them.
//
// A program that has a page of metrics registers a [Collector], and its page
// has the machine's RDMA devices as well:
//
//	prometheus.MustRegister(collector.New(collector.Config{}))
//
// The program verbena-exporter, in this module, has a page for machines without
// such a program.
//
// Counters are called rdma_port_NAME_total, with the labels device and port.
// NAME is the kernel's, in lower case, without "port_", and with "_bytes" where
// it counts bytes and does not say so; package stat of
// github.com/verbena-go/verbena/ibverbs has the names. What comes from a driver
// (hw_counters) has rdma_port_hw_, or rdma_device_hw_ if it is of the whole
// device. Messages of the connection manager are in rdma_port_cm_tx_msgs_total
// and others, with the label message. A driver's counter that package stat does
// not know has no type and no "_total", as it may not be one that only grows.
//
// The devices in user space of package softroce have the same metrics, as far
// as they count, with the process in the name of the device: soft0/4711.
//
// Prometheus has floating-point numbers: values above 2^53 are rounded.
package collector

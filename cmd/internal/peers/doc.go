// SPDX-License-Identifier: Apache-2.0

// Package peers holds code that several programs share whose peers may be
// programs of rdma-core: End is an end that exchanges datagrams, for udaddy and
// mckey; Prepare, Ask, Answer, Receive, Sent and Leave are the steps of an
// endpoint that sends one message and receives one, for rdmaclient, rdmaserver,
// rdmaxclient and rdmaxserver; Watch, Ended and Cause tell why a connection has
// ended, for these, ucmatose and verbena perf; Kind is the flag of rdmaxclient
// and rdmaxserver.
package peers

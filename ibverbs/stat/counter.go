// SPDX-License-Identifier: Apache-2.0

package stat

// Group is a group of counters, named like its directory in sysfs.
type Group string

// The groups of counters.
const (
	Standard Group = "counters"    // counters of a port, defined by the InfiniBand specification; drivers of RoCE may lack them
	Hardware Group = "hw_counters" // counters of a port or a device, with names of the driver
	CMSent   Group = "cm_tx_msgs"  // messages of the connection manager that a port sent, including retries
	// messages of the connection manager that a port sent again
	CMRetried Group = "cm_tx_retries"
	CMTaken   Group = "cm_rx_msgs" // messages of the connection manager that a port received, including duplicates
	// duplicates of messages of the connection manager that a port received
	CMRepeats Group = "cm_rx_duplicates"
)

// Unit is the unit of a counter.
type Unit string

// The units of counters. Bytes includes data that the kernel counts in units of
// four bytes.
const (
	Unknown  Unit = ""
	Bytes    Unit = "bytes"
	Packets  Unit = "packets"
	Messages Unit = "messages" // messages of the connection manager
	Requests Unit = "requests" // work requests, or requests of the protocol such as reads
	Commands Unit = "commands" // commands that the driver gives to the device
	Events   Unit = "events"   // occurrences; Counter.Help says of what
	Ticks    Unit = "ticks"    // ticks of a clock of the device; the vendor defines its rate
)

// Counter is a counter of a device or a port.
type Counter struct {
	Group Group  `json:"group"`
	Name  string `json:"name"` // the kernel's name
	// Value is the count since the device appeared or its counters were
	// cleared. If Unit is known, the value only grows, but may wrap to 0, as
	// counters of mlx5 with 32 bits do. Standard counters of errors stop at the
	// value that Help names.
	Value uint64 `json:"value"`
	Unit  Unit   `json:"unit"`                  // Unknown if this package does not know the counter
	Help  string `json:"description,omitempty"` // description of one sentence; empty if this package does not know the counter
}

// about is a description of a counter.
type about struct {
	unit  Unit
	scale uint64 // number of units for which the kernel counts one
	help  string
}

// known describes the counters that this package knows. The sources are
// PortCounters and PortCountersExtended of the InfiniBand specification,
// Documentation/ABI/stable/sysfs-class-infiniband of the kernel, and the
// documentation of the drivers.
var known = map[Group]map[string]about{
	Standard: {
		"port_xmit_data":                  {Bytes, 4, "Packets sent, in bytes, headers included."},
		"port_rcv_data":                   {Bytes, 4, "Packets received, in bytes, headers included."},
		"port_xmit_packets":               {Packets, 1, "Packets sent, also with errors."},
		"port_rcv_packets":                {Packets, 1, "Packets received, also with errors."},
		"unicast_xmit_packets":            {Packets, 1, "Unicast packets sent, also with errors."},
		"unicast_rcv_packets":             {Packets, 1, "Unicast packets received, also with errors."},
		"multicast_xmit_packets":          {Packets, 1, "Multicast packets sent, also with errors."},
		"multicast_rcv_packets":           {Packets, 1, "Multicast packets received, also with errors."},
		"port_xmit_wait":                  {Ticks, 1, "Time in which the port had data to send and could not: congestion, or no credits."},
		"port_xmit_discards":              {Packets, 1, "Packets to be sent that were discarded, because the port is down or congested; stops at 65535."},
		"port_rcv_errors":                 {Packets, 1, "Packets received with an error; stops at 65535."},
		"port_rcv_remote_physical_errors": {Packets, 1, "Packets received that were marked as bad on their way; stops at 65535."},
		"port_rcv_switch_relay_errors":    {Packets, 1, "Packets received that a switch could not forward; stops at 65535."},
		"port_xmit_constraint_errors":     {Packets, 1, "Packets not sent because of a partition or filter; stops at 255."},
		"port_rcv_constraint_errors":      {Packets, 1, "Packets received and dropped because of a partition or filter; stops at 255."},
		"symbol_error":                    {Events, 1, "Minor errors of the link, on any lane; stops at 65535."},
		"link_error_recovery":             {Events, 1, "Times that the link failed and recovered; stops at 255."},
		"link_downed":                     {Events, 1, "Times that the link failed and went down; stops at 255."},
		"local_link_integrity_errors":     {Events, 1, "Times that there were more errors of the link than allowed; stops at 15."},
		"excessive_buffer_overrun_errors": {Events, 1, "Times that buffers overran for long: a port that is set up wrongly, or a bad link; stops at 15."},
		"VL15_dropped":                    {Packets, 1, "Packets of subnet management received and dropped for lack of room; stops at 65535."},
	},
	Hardware: {
		// rdma_rxe, and mlx5 where the name is the same.
		"sent_pkts":              {Packets, 1, "Packets sent."},
		"rcvd_pkts":              {Packets, 1, "Packets received."},
		"sent_bytes":             {Bytes, 1, "Packets sent, in bytes."},
		"rcvd_bytes":             {Bytes, 1, "Packets received, in bytes."},
		"duplicate_request":      {Packets, 1, "Requests received again: the peer has sent them again, so an answer was lost or late."},
		"out_of_seq_request":     {Packets, 1, "Requests received before one that is missing: packets were lost or reordered."},
		"rcvd_rnr_err":           {Packets, 1, "Negative acknowledgements received: the peer had no receive posted."},
		"send_rnr_err":           {Packets, 1, "Negative acknowledgements sent: there was no receive posted here."},
		"rcvd_seq_err":           {Packets, 1, "Negative acknowledgements received: the peer has missed a packet."},
		"ack_deferred":           {Events, 1, "Times that answers were left to a worker."},
		"retry_exceeded_err":     {Events, 1, "Requests given up: the peer did not answer in all retries."},
		"retry_rnr_exceeded_err": {Events, 1, "Requests given up: the peer had no receive posted in all retries."},
		"completer_retry_err":    {Events, 1, "Times that requests were sent again, from the oldest one without an answer on."},
		"send_err":               {Packets, 1, "Packets that the network did not take."},
		"link_downed":            {Events, 1, "Times that the link went down."},
		"rdma_sends":             {Requests, 1, "Messages sent."},
		"rdma_recvs":             {Requests, 1, "Messages received."},

		// mlx5. Those without 64 bits begin again from 0.
		"rx_write_requests":              {Requests, 1, "RDMA writes received."},
		"rx_read_requests":               {Requests, 1, "RDMA reads received."},
		"rx_atomic_requests":             {Requests, 1, "Atomics received."},
		"rx_dct_connect":                 {Requests, 1, "Requests received to connect dynamically connected transport."},
		"out_of_buffer":                  {Packets, 1, "Packets received and dropped, because no receive was posted."},
		"out_of_sequence":                {Packets, 1, "Packets received before one that is missing: packets were lost or reordered."},
		"rnr_nak_retry_err":              {Packets, 1, "Negative acknowledgements received: the peer had no receive posted."},
		"packet_seq_err":                 {Packets, 1, "Negative acknowledgements received: the peer has missed a packet."},
		"implied_nak_seq_err":            {Events, 1, "Times that the answer to a later request showed that one to a read or atomic was lost."},
		"local_ack_timeout_err":          {Events, 1, "Times that no acknowledgement came in time."},
		"resp_local_length_error":        {Events, 1, "Requests received that were longer than their receive."},
		"resp_cqe_error":                 {Events, 1, "Receives that completed with an error."},
		"req_cqe_error":                  {Events, 1, "Requests that completed with an error."},
		"resp_cqe_flush_error":           {Events, 1, "Receives that were flushed, because their queue pair failed or was closed."},
		"req_cqe_flush_error":            {Events, 1, "Requests that were flushed, because their queue pair failed or was closed."},
		"req_remote_invalid_request":     {Events, 1, "Requests that the peer refused as invalid."},
		"req_remote_access_errors":       {Events, 1, "Requests that the peer refused, for its memory or key."},
		"resp_remote_access_errors":      {Events, 1, "Requests received and refused, for the memory or key here."},
		"req_transport_retries_exceeded": {Events, 1, "Requests given up: the peer did not answer in all retries."},
		"req_rnr_retries_exceeded":       {Events, 1, "Requests given up: the peer had no receive posted in all retries."},
		"rp_cnp_handled":                 {Packets, 1, "Congestion notifications received, for which this port slowed down."},
		"rp_cnp_ignored":                 {Packets, 1, "Congestion notifications received and ignored."},
		"np_cnp_sent":                    {Packets, 1, "Congestion notifications sent, for packets that switches have marked."},
		"np_ecn_marked_roce_packets":     {Packets, 1, "Packets received that switches have marked for congestion."},
		"roce_adp_retrans":               {Events, 1, "Adaptive retransmissions."},
		"roce_adp_retrans_to":            {Events, 1, "Timeouts because of adaptive retransmission."},
		"roce_slow_restart":              {Events, 1, "Times that slow restart was used."},
		"roce_slow_restart_cnps":         {Events, 1, "Times that slow restart made a congestion notification."},
		"roce_slow_restart_trans":        {Events, 1, "Times that a flow went over to slow restart."},
		"rx_icrc_encapsulated":           {Packets, 1, "Packets of RoCE received with a wrong ICRC: the network has changed them."},
		"cc_rx_ce_pkts":                  {Packets, 1, "Packets received that switches have marked for congestion."},
		"cc_rx_cnp_pkts":                 {Packets, 1, "Congestion notifications received."},
		"cc_tx_cnp_pkts":                 {Packets, 1, "Congestion notifications sent."},
		"rdma_tx_packets":                {Packets, 1, "Packets of RDMA sent."},
		"rdma_tx_bytes":                  {Bytes, 1, "Packets of RDMA sent, in bytes."},
		"rdma_rx_packets":                {Packets, 1, "Packets of RDMA received."},
		"rdma_rx_bytes":                  {Bytes, 1, "Packets of RDMA received, in bytes."},

		// efa, of a port.
		"tx_bytes":                    {Bytes, 1, "Packets sent, in bytes."},
		"tx_pkts":                     {Packets, 1, "Packets sent."},
		"rx_bytes":                    {Bytes, 1, "Packets received, in bytes."},
		"rx_pkts":                     {Packets, 1, "Packets received."},
		"rx_drops":                    {Packets, 1, "Packets received and dropped."},
		"send_bytes":                  {Bytes, 1, "Data of sends."},
		"send_wrs":                    {Requests, 1, "Sends."},
		"recv_bytes":                  {Bytes, 1, "Data of receives."},
		"recv_wrs":                    {Requests, 1, "Receives."},
		"rdma_read_wrs":               {Requests, 1, "RDMA reads."},
		"rdma_read_bytes":             {Bytes, 1, "Data of RDMA reads."},
		"rdma_read_wr_err":            {Requests, 1, "RDMA reads that failed."},
		"rdma_read_resp_bytes":        {Bytes, 1, "Data of answers to RDMA reads."},
		"rdma_write_wrs":              {Requests, 1, "RDMA writes."},
		"rdma_write_bytes":            {Bytes, 1, "Data of RDMA writes."},
		"rdma_write_wr_err":           {Requests, 1, "RDMA writes that failed."},
		"rdma_write_recv_bytes":       {Bytes, 1, "Data of RDMA writes received."},
		"retrans_bytes":               {Bytes, 1, "Packets sent again, in bytes."},
		"retrans_pkts":                {Packets, 1, "Packets sent again."},
		"retrans_timeout_events":      {Events, 1, "Times that no acknowledgement came in time."},
		"unresponsive_remote_events":  {Events, 1, "Times that a peer did not answer any more."},
		"impaired_remote_conn_events": {Events, 1, "Times that the way to a peer was impaired."},

		// efa, of a device.
		"submitted_cmds":     {Commands, 1, "Commands given to the device."},
		"completed_cmds":     {Commands, 1, "Commands that the device has done."},
		"cmds_err":           {Commands, 1, "Commands that failed."},
		"no_completion_cmds": {Commands, 1, "Commands that the device did not answer."},
		"keep_alive_rcvd":    {Events, 1, "Signs of life from the device."},
		"alloc_pd_err":       {Events, 1, "Protection domains that could not be made."},
		"create_qp_err":      {Events, 1, "Queue pairs that could not be made."},
		"create_cq_err":      {Events, 1, "Completion queues that could not be made."},
		"reg_mr_err":         {Events, 1, "Memory regions that could not be registered."},
		"alloc_ucontext_err": {Events, 1, "Contexts that could not be made."},
		"create_ah_err":      {Events, 1, "Address handles that could not be made."},
		"mmap_err":           {Events, 1, "Mappings of device memory that could not be made."},
	},
	CMSent:    messages("sent"),
	CMRetried: messages("sent again, as no answer came in time"),
	CMTaken:   messages("received"),
	CMRepeats: messages("received again: the peer got no answer in time"),
}

// messages returns the counters of the connection manager's messages. how is
// the end of each description.
func messages(how string) map[string]about {
	all := map[string]about{}
	for name, what := range map[string]string{
		"req": "Requests to connect", "rep": "Replies to requests to connect", "rtu": "Confirmations of a connection", "rej": "Rejections",
		"mra": "Messages that ask the peer to wait", "dreq": "Requests to disconnect", "drep": "Replies to requests to disconnect",
		"lap": "Requests to load an alternate path", "apr": "Replies to requests for an alternate path",
		"sidr_req": "Requests to find a service of datagrams", "sidr_rep": "Replies to requests for a service of datagrams",
	} {
		all[name] = about{Messages, 1, what + " " + how + "."}
	}
	return all
}

// counter returns the counter with the value in the kernel's unit.
func counter(group Group, name string, value uint64) Counter {
	k, is := known[group][name]
	if !is {
		return Counter{Group: group, Name: name, Value: value}
	}
	return Counter{group, name, value * k.scale, k.unit, k.help}
}

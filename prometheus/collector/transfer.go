// SPDX-License-Identifier: Apache-2.0

package collector

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/verbena-go/verbena/transfer"
)

// Transfer is a prometheus.Collector of the peers of an engine of package
// transfer. It reads their counts during each scrape.
type Transfer struct{ engine *transfer.Engine }

// NewTransfer returns a Transfer.
func NewTransfer(engine *transfer.Engine) *Transfer { return &Transfer{engine} }

// Describe describes no metric, because peers come and go.
func (*Transfer) Describe(chan<- *prometheus.Desc) {}

var (
	peerLabels   = []string{"peer"}
	deviceLabels = []string{"peer", "device"}

	transferRequests = prometheus.NewDesc("rdma_transfer_requests_total", "Requests that are done.", peerLabels, nil)
	transferFailed   = prometheus.NewDesc("rdma_transfer_requests_failed_total", "Requests that failed.", peerLabels, nil)
	transferPending  = prometheus.NewDesc("rdma_transfer_requests_pending", "Requests that are submitted and not done.", peerLabels, nil)
	transferSent     = prometheus.NewDesc("rdma_transfer_notifications_sent_total", "Notifications that the peer has.", peerLabels, nil)
	transferReceived = prometheus.NewDesc("rdma_transfer_notifications_received_total", "Notifications of the peer that arrived.", peerLabels, nil)
	transferSessions = prometheus.NewDesc("rdma_transfer_sessions_total", "Sessions that began.", peerLabels, nil)
	transferRegions  = prometheus.NewDesc("rdma_transfer_regions", "Regions that the peer offers.", peerLabels, nil)
	transferUp       = prometheus.NewDesc("rdma_transfer_up", "Whether there is a control connection to the peer.", peerLabels, nil)

	transferConnections = prometheus.NewDesc("rdma_transfer_connections", "Data connections that are up.", deviceLabels, nil)
	transferMade        = prometheus.NewDesc("rdma_transfer_connections_made_total", "Data connections that were made.", deviceLabels, nil)
	transferLost        = prometheus.NewDesc("rdma_transfer_connections_lost_total", "Data connections that ended.", deviceLabels, nil)
	transferRead        = prometheus.NewDesc("rdma_transfer_read_bytes_total", "Bytes that were read from the peer.", deviceLabels, nil)
	transferWritten     = prometheus.NewDesc("rdma_transfer_written_bytes_total", "Bytes that were written to the peer.", deviceLabels, nil)
	transferSlices      = prometheus.NewDesc("rdma_transfer_slices_total", "Work requests that are done.", deviceLabels, nil)
	transferRepeated    = prometheus.NewDesc("rdma_transfer_slices_repeated_total", "Work requests that failed with their connection and were to be repeated.", deviceLabels, nil)
)

// Collect reads the counts. Peers with the same address are shown as one.
func (t *Transfer) Collect(to chan<- prometheus.Metric) {
	peers := map[string]transfer.Stats{}
	for peer := range t.engine.Peers() {
		stats := peers[peer.Address()]
		stats.Add(peer.Stats())
		peers[peer.Address()] = stats
	}
	for name, stats := range peers {
		count := func(desc *prometheus.Desc, value uint64, labels ...string) {
			to <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(value), labels...)
		}
		gauge := func(desc *prometheus.Desc, value int, labels ...string) {
			to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value), labels...)
		}
		up := 1
		if stats.ControlIsDown {
			up = 0
		}
		count(transferRequests, stats.Requests, name)
		count(transferFailed, stats.Failed, name)
		gauge(transferPending, stats.Pending, name)
		count(transferSent, stats.Sent, name)
		count(transferReceived, stats.Received, name)
		count(transferSessions, stats.Sessions, name)
		gauge(transferRegions, stats.Regions, name)
		gauge(transferUp, up, name)
		for _, d := range stats.Devices {
			gauge(transferConnections, d.Connections, name, d.Device)
			count(transferMade, d.Made, name, d.Device)
			count(transferLost, d.Lost, name, d.Device)
			count(transferRead, d.Read, name, d.Device)
			count(transferWritten, d.Written, name, d.Device)
			count(transferSlices, d.Slices, name, d.Device)
			count(transferRepeated, d.Repeated, name, d.Device)
		}
	}
}

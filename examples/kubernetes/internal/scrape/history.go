// SPDX-License-Identifier: Apache-2.0

// Package scrape keeps what a collector said at several times, and evaluates
// the part of PromQL that the dashboard uses. It is no Prometheus: rates are
// between the first and the last sample of their window, without extrapolation.
package scrape

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
)

// Sample is a value with its labels, the metric's name included.
type Sample struct {
	Labels labels.Labels
	Value  float64
}

// Page is what a collector says at one time.
type Page struct {
	At      time.Time
	Samples []Sample
}

// History is pages, from the first to the last.
type History []Page

// Take gathers a page. node is a label of all samples, as Prometheus adds it.
func Take(g prometheus.Gatherer, node string, at time.Time) (Page, error) {
	families, err := g.Gather()
	page := Page{At: at}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			b := labels.NewBuilder(labels.FromStrings(model.MetricNameLabel, family.GetName(), "node", node))
			for _, l := range m.GetLabel() {
				b.Set(l.GetName(), l.GetValue())
			}
			page.Samples = append(page.Samples, Sample{b.Labels(), value(m)})
		}
	}
	return page, err
}

// value returns the value of a metric. The collector has neither histograms nor
// summaries.
func value(m *dto.Metric) float64 {
	return m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetUntyped().GetValue()
}

// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"fmt"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// Eval returns the value of an expression at the time of the i-th page.
func (h History) Eval(expr parser.Expr, i int) ([]Sample, error) {
	switch e := expr.(type) {
	case *parser.ParenExpr:
		return h.Eval(e.Expr, i)
	case *parser.VectorSelector:
		return selected(h[i], e.LabelMatchers), nil
	case *parser.Call:
		return h.call(e, i)
	case *parser.AggregateExpr:
		samples, err := h.Eval(e.Expr, i)
		if err != nil {
			return nil, err
		}
		return aggregate(e, samples)
	case *parser.BinaryExpr:
		left, err := h.Eval(e.LHS, i)
		if err != nil {
			return nil, err
		}
		right, err := h.Eval(e.RHS, i)
		if err != nil {
			return nil, err
		}
		return combine(e, left, right)
	}
	return nil, fmt.Errorf("%s: no evaluation of a %T here", expr, expr)
}

// selected returns the samples of a page that all matchers match.
func selected(p Page, matchers []*labels.Matcher) (samples []Sample) {
next:
	for _, s := range p.Samples {
		for _, m := range matchers {
			if !m.Matches(s.Labels.Get(m.Name)) {
				continue next
			}
		}
		samples = append(samples, s)
	}
	return samples
}

func (h History) call(e *parser.Call, i int) ([]Sample, error) {
	switch e.Func.Name {
	case "vector":
		if n, ok := e.Args[0].(*parser.NumberLiteral); ok {
			return []Sample{{Value: n.Val}}, nil
		}
	case "rate":
		if m, ok := e.Args[0].(*parser.MatrixSelector); ok {
			if v, ok := m.VectorSelector.(*parser.VectorSelector); ok {
				return h.rate(v.LabelMatchers, m.Range, i), nil
			}
		}
	}
	return nil, fmt.Errorf("%s: no evaluation of %s here", e, e.Func.Name)
}

// rate returns the increase per second of each series that has several samples
// in the window that ends with the i-th page. A value that is less than that
// before is of a counter that began again from 0.
func (h History) rate(matchers []*labels.Matcher, window time.Duration, i int) (rates []Sample) {
	for _, last := range selected(h[i], matchers) {
		before, since, increase := last.Value, h[i].At, 0.0
		for j := i - 1; j >= 0 && h[i].At.Sub(h[j].At) <= window; j-- {
			value, found := find(h[j], last.Labels)
			if !found {
				break
			}
			if value <= before {
				increase += before - value
			} else {
				increase += before
			}
			before, since = value, h[j].At
		}
		if seconds := h[i].At.Sub(since).Seconds(); seconds > 0 {
			rates = append(rates, Sample{last.Labels.DropReserved(func(name string) bool { return name == model.MetricNameLabel }), increase / seconds})
		}
	}
	return rates
}

func find(p Page, of labels.Labels) (value float64, found bool) {
	for _, s := range p.Samples {
		if labels.Equal(s.Labels, of) {
			return s.Value, true
		}
	}
	return 0, false
}

// aggregate adds up, counts, or returns the least of the samples of each group.
func aggregate(e *parser.AggregateExpr, samples []Sample) (groups []Sample, err error) {
	at := map[string]int{}
	for _, s := range samples {
		group := s.Labels.MatchLabels(!e.Without, e.Grouping...)
		i, seen := at[group.String()]
		if !seen {
			i = len(groups)
			at[group.String()] = i
			groups = append(groups, Sample{Labels: group})
		}
		switch value := &groups[i].Value; e.Op {
		case parser.SUM:
			*value += s.Value
		case parser.COUNT:
			*value++
		case parser.MIN:
			if !seen || s.Value < *value {
				*value = s.Value
			}
		default:
			return nil, fmt.Errorf("%s: no evaluation of %s here", e, e.Op)
		}
	}
	return groups, nil
}

// combine returns the difference of two values without labels, or of two
// vectors the first that has samples.
func combine(e *parser.BinaryExpr, left, right []Sample) ([]Sample, error) {
	switch {
	case e.Op == parser.LOR && len(left) == 0:
		return right, nil
	case e.Op == parser.LOR:
		return left, nil
	case e.Op == parser.SUB && len(left)*len(right) == 0:
		return nil, nil
	case e.Op == parser.SUB && len(left)*len(right) == 1:
		return []Sample{{left[0].Labels, left[0].Value - right[0].Value}}, nil
	}
	return nil, fmt.Errorf("%s: no evaluation of %s here", e, e.Op)
}

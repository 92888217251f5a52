// SPDX-License-Identifier: Apache-2.0

package rdmacm

import "github.com/verbena-go/verbena/ibverbs"

// A VerbsQP, for Config.Queues, makes the Conn create its queue pair with
// ibv_create_qp(3) instead of librdmacm. Such a connection lacks the
// enhancements (ECE) that librdmacm negotiates with the peer. The zero value
// and a nil *VerbsQP are usable.
type VerbsQP struct{}

func (*VerbsQP) check(config *Config, id *ID) error { return config.checkSizes(id) }

func (*VerbsQP) create(c *Conn) error {
	c.byVerbs = true
	return c.createQueues(c.supplyOwn, func(config ibverbs.QPConfig) (err error) {
		if c.qp, err = c.pd.CreateQP(config); err != nil {
			return err
		}
		return c.moveQP(nil, ibverbs.QPStateInit) // in this state, receives can be posted
	})
}

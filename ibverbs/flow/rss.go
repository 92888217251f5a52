// SPDX-License-Identifier: Apache-2.0

package flow

import (
	"fmt"
	"runtime"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/internal/sibling"
	"github.com/verbena-go/verbena/internal/cerr"
	"github.com/verbena-go/verbena/internal/object"
	"github.com/verbena-go/verbena/internal/sealed"
)

// RSSFunction is a hash function for receive-side scaling.
type RSSFunction = libibverbs.RxHashFunctionFlags

// RSSToeplitz is the only hash function that libibverbs defines.
const RSSToeplitz RSSFunction = libibverbs.IBV_RX_HASH_FUNC_TOEPLITZ

// RSSFields are fields of a packet's header to hash; combine them with |.
type RSSFields = libibverbs.RxHashFields

// The fields of a header that can be hashed.
const (
	RSSSrcIPv4    RSSFields = libibverbs.IBV_RX_HASH_SRC_IPV4
	RSSDstIPv4    RSSFields = libibverbs.IBV_RX_HASH_DST_IPV4
	RSSSrcIPv6    RSSFields = libibverbs.IBV_RX_HASH_SRC_IPV6
	RSSDstIPv6    RSSFields = libibverbs.IBV_RX_HASH_DST_IPV6
	RSSSrcPortTCP RSSFields = libibverbs.IBV_RX_HASH_SRC_PORT_TCP
	RSSDstPortTCP RSSFields = libibverbs.IBV_RX_HASH_DST_PORT_TCP
	RSSSrcPortUDP RSSFields = libibverbs.IBV_RX_HASH_SRC_PORT_UDP
	RSSDstPortUDP RSSFields = libibverbs.IBV_RX_HASH_DST_PORT_UDP
	RSSIPsecSPI   RSSFields = libibverbs.IBV_RX_HASH_IPSEC_SPI
	RSSInner      RSSFields = libibverbs.IBV_RX_HASH_INNER // hash the header inside a tunnel
)

// RSSKeyLen is the length of a Toeplitz key in bytes: enough for two IPv6
// addresses and two ports.
const RSSKeyLen = 40

// RSSConfig is the configuration of a queue pair that spreads the packets that
// it receives over work queues. Such a queue pair cannot send.
type RSSConfig struct {
	Type     ibverbs.QPType // type of the queue pair: ibverbs.QPTypeRawPacket or ibverbs.QPTypeUD; 0 means QPTypeRawPacket
	Table    *IndirectionTable
	Function RSSFunction // hash function; 0 means RSSToeplitz
	Key      []byte      // hash key of RSSKeyLen bytes, required; a random key prevents senders from choosing the queue
	Fields   RSSFields   // fields to hash; 0 means that all packets go to one entry of the table
	Flags    ibverbs.QPCreateFlags
}

// attr returns the config in C's form, without the key.
func (c RSSConfig) attr(pd *ibverbs.PD) (*libibverbs.QpInitAttrEx, error) {
	a := &libibverbs.QpInitAttrEx{
		QpType: c.Type, Pd: pd.Raw(), RwqIndTbl: c.Table.raw,
		CompMask: libibverbs.IBV_QP_INIT_ATTR_PD | libibverbs.IBV_QP_INIT_ATTR_IND_TABLE | libibverbs.IBV_QP_INIT_ATTR_RX_HASH,
		RxHashConf: libibverbs.RxHashConf{
			RxHashFunction: uint8(RSSToeplitz), RxHashKeyLen: RSSKeyLen, RxHashFieldsMask: uint64(c.Fields),
		},
	}
	if a.QpType == 0 {
		a.QpType = ibverbs.QPTypeRawPacket
	}
	if c.Flags != 0 {
		a.CompMask |= libibverbs.IBV_QP_INIT_ATTR_CREATE_FLAGS
		a.CreateFlags = c.Flags
	}
	var wrong string
	switch {
	case a.QpType != ibverbs.QPTypeRawPacket && a.QpType != ibverbs.QPTypeUD:
		wrong = fmt.Sprintf("Type is %v, neither %v nor %v", a.QpType, ibverbs.QPTypeRawPacket, ibverbs.QPTypeUD)
	case c.Function != 0 && c.Function != RSSToeplitz:
		wrong = fmt.Sprintf("Function is %v, not RSSToeplitz", c.Function)
	case len(c.Key) != RSSKeyLen:
		wrong = fmt.Sprintf("Key has %d bytes, not %d", len(c.Key), RSSKeyLen)
	default:
		return a, nil
	}
	return nil, cerr.Refuse("ibv_create_qp_ex", sibling.ObjectOf(pd).Name(), "RSSConfig: %s", wrong)
}

// CreateRSSQP creates a queue pair that spreads the packets it receives over
// the work queues of a table, by a hash of their headers; see
// ibv_create_qp_ex(3). [Create] a rule to send packets to it. Close it before
// the table.
func CreateRSSQP(pd *ibverbs.PD, config RSSConfig) (*ibverbs.QP, error) {
	parents := []*object.Object{sibling.ObjectOf(pd), config.Table.self()}
	done, err := object.UseAll(parents...)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := sibling.SameDevice("ibv_create_qp_ex", parents[0].Name(), pd.Device(), parents[1], config.Table.device); err != nil {
		return nil, err
	}
	attr, err := config.attr(pd)
	if err != nil {
		return nil, err
	}
	var pinner runtime.Pinner // C gets a pointer to a pointer
	defer pinner.Unpin()
	pinner.Pin(&config.Key[0])
	attr.RxHashConf.RxHashKey = &config.Key[0]
	raw, err := libibverbs.CreateQpEx(pd.Device().Raw(), attr)
	if err != nil {
		return nil, sibling.Wrap(parents[0].Name(), err)
	}
	return sealed.Open(pd.Internals()).AdoptQP(raw, parents...), nil
}

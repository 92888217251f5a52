// SPDX-License-Identifier: Apache-2.0

package mlx5_test

import (
	"log"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/ibverbs/mlx5"
)

// A target takes messages from any number of initiators.
func ExampleCreateDCT() {
	var pd *ibverbs.PD
	var cq *ibverbs.CQ
	var srq *ibverbs.SRQ // with receives posted
	var gid ibverbs.GID  // of this host, at gidIndex
	var gidIndex int

	dct, err := mlx5.CreateDCT(pd, mlx5.DCTConfig{CQ: cq, SRQ: srq, Key: 0x1234})
	if err != nil { // errors.ErrUnsupported on another vendor's device
		log.Fatal(err)
	}
	defer dct.Close()
	err = dct.Start(mlx5.DCTPath{
		Port: 1, MTU: ibverbs.MTU1024, Access: ibverbs.AccessRemoteWrite,
		From: ibverbs.AHAttr{Port: 1, DGID: gid, SGIDIndex: gidIndex, HopLimit: 64},
	})
	if err != nil {
		log.Fatal(err)
	}
	log.Print("tell the initiators: target ", dct.Num())
}

// An initiator writes to two targets.
func ExampleDCI_Post() {
	var pd *ibverbs.PD
	var cq *ibverbs.CQ
	var mr *ibverbs.MR
	var near, far mlx5.Target // with an address handle, a number and a key each
	var there ibverbs.RemoteBuffer

	dci, err := mlx5.CreateDCI(pd, mlx5.DCIConfig{CQ: cq, SendQueue: 64})
	if err != nil {
		log.Fatal(err)
	}
	defer dci.Close()
	if err := dci.Start(mlx5.DCIPath{Port: 1, MTU: ibverbs.MTU1024, MaxReads: 1}); err != nil {
		log.Fatal(err)
	}
	err = dci.Post(
		mlx5.Request{Op: mlx5.Send, To: near, Segments: []ibverbs.Segment{mr.All()}},
		mlx5.Request{Op: mlx5.Write, To: far, Remote: there, Flags: ibverbs.SendSignaled, Segments: []ibverbs.Segment{mr.All()}},
	)
	if err != nil {
		log.Fatal(err)
	}
}

# Runs in a laboratory machine, on the host's file system: brings up the NICs with an RDMA device each, then the command.
export PATH=/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin HOME=/root SHARE=/mnt
argument() { sed -n "s/.* lab\.$1=\([0-9]*\).*/\1/p" /proc/cmdline; }
NODE=$(argument node) NODES=$(argument nodes) NICS=$(argument nics)
export NODE NODES NICS
ulimit -l unlimited
hostname "node$NODE"
ip link set lo up
nic=0
while [ "$nic" -lt "$NICS" ]; do
  ip link set "eth$nic" mtu 9000
  ip addr add "10.$((77 + nic)).0.$((NODE + 1))/24" dev "eth$nic"
  ip link set "eth$nic" up
  rdma link add "rxe$nic" type rxe netdev "eth$nic" || echo "lab: no RDMA device on eth$nic" >>"/mnt/node$NODE.err"
  nic=$((nic + 1))
done
echo ready >"/mnt/.lab/ready$NODE"
sh /mnt/.lab/command.sh >>"/mnt/node$NODE.out" 2>>"/mnt/node$NODE.err" </dev/null
code=$?
if [ "$code" -ne 0 ]; then # what the network looks like to this machine: whether it was the command or the laboratory
  {
    ip -s link
    grep virtio /proc/interrupts
    other=0
    while [ "$other" -lt "$NODES" ]; do
      [ "$other" = "$NODE" ] || timeout 0.5 bash -c "echo to machine $other; : </dev/tcp/10.77.0.$((other + 1))/9" # refused: reached
      other=$((other + 1))
    done
    grep -h . /sys/class/infiniband/*/ports/1/hw_counters/* | tr '\n' ' '
  } >"/mnt/node$NODE.network" 2>&1
fi
echo "$code" >"/mnt/.lab/exit$NODE.new"
mv "/mnt/.lab/exit$NODE.new" "/mnt/.lab/exit$NODE"
sync
echo o >/proc/sysrq-trigger
sleep 60

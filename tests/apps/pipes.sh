# For a statically linked shell whose tools are the same program: pipelines, a background job that is told what to do by
# a named pipe, and short sleeps.
mkfifo orders
(while read -r order; do echo "job: $order"; sleep 0.01; done < orders; echo "job ends") > said &
job=$!
exec 3> orders
i=0
while [ $i -lt 40 ]; do
    i=$((i + 1))
    echo "$i" >&3
    seq 1 $((i * 50)) | sort -r | md5sum | cut -c 1-12
    sleep 0.05
done
exec 3>&-
wait $job
echo "status $?"
md5sum < said
